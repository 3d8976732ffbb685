"""What ``meshfeed reshard-plan`` does: arrays from one sharding to another, planned and shown.

``arrays``   what is to move: from flags, or from a file with a whole tree of parameters
``table``    the plans as a table, in words, and as plain values
``verify``   the same compiled by XLA on CPU devices
``tiles``    which device holds which part, laid out for a picture
``picture``  source, intermediate and target side by side
"""
