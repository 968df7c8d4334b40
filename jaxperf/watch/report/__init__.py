"""What a watch reports: shares of the time, the costliest programs, and the text on the screen."""
