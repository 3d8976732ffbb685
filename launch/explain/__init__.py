"""What ``meshfeed explain-partition`` does: a training step, compiled and timed per partition type.

``cpu_devices``  as many CPU devices as the mesh has
``batches``      a global batch of made-up documents, packed as a run packs them
``steps``        what a training step is, and how a user's is found and checked
``transformer``  the step where the user names none
``measure``      the step compiled under each partition type, its HLO counted, its time taken
``findings``     what that comes to, in words
``show``         the table
"""
