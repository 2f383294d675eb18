"""Restoring pictures: files in, better files out, by tiles that change nothing in the result.

`jaxsr.restore` is the door; the rooms are `pictures` and `encode` (files), `receptive` and `tiling`
(what a tile must hold), `colour` (what a network sees of a picture), `pipeline` (everything at
once), `video`, `report` and `models` (which network).
"""
