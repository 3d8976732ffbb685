"""What belongs to a whole run: its preparation, its folder, its replay, its outlook."""
