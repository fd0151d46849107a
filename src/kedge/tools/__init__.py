"""The agent's hands: one module and one Markdown file for each tool."""
