"""What runs the chapter's sections: their list, the cell runner, what it records and shows."""
