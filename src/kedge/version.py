"""The version, as a constant: asking the installed metadata for it costs more than starting Python."""

VERSION = "0.1.0"
