"""The sandbox of `bash`: what a command may touch, and who holds it to that.

A `policy` says what; a backend (`landlock`, `bubblewrap`) makes a `Hold` of it; `launch` starts a command in one. Where
no backend works that is said, and a person decides: a command never runs without, silently.
"""
