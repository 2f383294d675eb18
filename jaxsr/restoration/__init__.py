"""Restoring images: files in, better files out, in tiles that do not change the result.

`restore_images` is `jaxsr.restore`, `restore_files` the command. `pictures` and `encode` read and
write files, `receptive_field` and `tiling` decide the extent of a tile, `colour` the channels that
a network gets. `pipeline` runs everything at once, `video` goes frame by frame, `models` finds the
network and `quality_report` compares results with the truth.
"""
