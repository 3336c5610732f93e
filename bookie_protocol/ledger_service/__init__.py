"""The gateway's gRPC service: `ledger_service.proto`, and the code generated from it."""
