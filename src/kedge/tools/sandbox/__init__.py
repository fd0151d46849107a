"""The sandbox of `bash`: what a command may read, write and connect to, enforced by the kernel.

`policy` describes it, a backend (`landlock`, `bubblewrap`) turns a policy into a `LaunchSpec`, and `launch` starts the
command. Where no backend works the user is asked: no command runs unsandboxed silently.
"""
