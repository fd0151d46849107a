"""What the interface knows of its workspace, without a screen: events go in, blocks to show come out."""
