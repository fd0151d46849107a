"""The prompt editor: typing, pasting, completion and history, until a prompt is submitted."""
