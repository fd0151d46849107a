"""The tools: one module each, with the Markdown file that the model reads as its description."""
