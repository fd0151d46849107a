"""Whether a tool call may run: rules, modes, grants, and the judge that applies them.

A command line that cannot be parsed exactly never runs unsandboxed without approval.
"""
