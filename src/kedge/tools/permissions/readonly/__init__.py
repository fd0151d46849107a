"""Which commands only read: the table of programs (`table`), and git (`git`)."""
