"""How the coordinator and a rank talk: in one process, over shared memory, or over a socket."""
