"""Who may do what: rules, modes, grants, and a judge who reads a command as the shell would.

Nothing is let through because it was not understood: what cannot be read for certain is asked.
"""
