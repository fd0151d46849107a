"""The dialogs in front of the chat: each is a screen that returns an answer, or None if it was closed."""
