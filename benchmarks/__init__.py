"""What meshfeed reaches, against the limits of the machine it runs on.

``python -m benchmarks`` prepares a corpus of real text (``corpus``), runs every case and its
limit in turns (``throughput``), and prints ratios. Each case is a process of its own that prints
one JSON line: a limit (``baselines``) or meshfeed itself (``feed``). ``meter`` counts processor
time and memory over all the processes that a case starts.
"""
