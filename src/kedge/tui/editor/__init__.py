"""The prompt editor: what is typed, pasted, completed and recalled, until the server has it."""
