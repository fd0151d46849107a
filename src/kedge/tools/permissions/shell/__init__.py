"""Reading shell text: exactly where it is plain (`parse`), otherwise by scanning for commands (`scan`)."""
