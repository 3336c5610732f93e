"""What runs as a process: a bookie, a gateway, auto-recovery, the metadata service; and how a process ends.

bookie         from start to exit code                    service       what the others have in common
gateway, auto_recovery, metadata_service
until_signal   until it is told to stop                   watch         threads and tasks that others wait for
background     tasks beside the process's work            memory        memory that is given back, and guarded
"""
