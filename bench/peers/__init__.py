"""Kedge beside its peers: the same work through each, against one scripted model, in turns."""
