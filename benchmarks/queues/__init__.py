"""One module for each queue that is measured: Holdfast, bare SQL, and the other queues, each used as its
documentation says. Every queue runs in processes of its own (run.py), the others' in an environment of
theirs.

A module has

    PACKAGE             the distribution whose version is shown, or its VERSION
    setup()             makes the tables; left out where the queue makes them itself
    producer()          a context manager that gives a Producer
    durability()        what a job that was enqueued survives, read from the queue's own connection
    command(processes)  what a user runs to start a worker; or else
    work()              a worker by the library's API, where the queue has no command

and reads what it needs from benchmarks/queues/place.py. Its handlers do nothing but count (tally.py).
"""
