"""The pure part: numpy and the standard library only, no device and no file format in sight."""
