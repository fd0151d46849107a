"""What is shown in front of the chat, each a screen of its own that gives back an answer."""
