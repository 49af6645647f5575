"""The workspace: a folder of the host, copied into a sandbox, its changes copied out.

What comes out is hostile input. Nothing is believed that a sandbox says: names are
checked, links are neither followed nor made to lead elsewhere, sizes are counted
while they arrive, and nothing of the host is touched that is not what it was when
it was copied in.
"""
