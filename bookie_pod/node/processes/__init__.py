"""The kinds of process: a bookie, a gateway, auto-recovery, the metadata service; and how a process ends.

bookie            from start to exit code
gateway           the gRPC gateway
auto_recovery     auditor and worker
metadata_service  the embedded metadata service
service           the common part of these three
until_signal      until a signal stops it
watch             threads and tasks that others wait for
background        tasks beside the process's work
memory            memory that is given back, and guarded
"""
