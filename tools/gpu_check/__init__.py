"""What a GPU machine without a network is asked in one short visit: `pack` here, `check.sh` there."""
