"""Who may call: bearer tokens of the gRPC server.

Invariants
- Without a token that is known now no call reaches a service but the health service's, which says nothing that a probe
  must not know.
- A call is judged when it begins; a stream that runs goes on when its token is taken away.

Event loop only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from grpc_health.v1 import health

from bookie_pod.server.tokens import Tokens

_PUBLIC: Final = f"/{health.SERVICE_NAME}/"
_REFUSAL: Final = (
    "this port demands a token: send the metadata `authorization: Bearer <token>` (grpcServerAuthTokenFile)"
)


class DemandToken(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Refuses calls with UNAUTHENTICATED unless they carry one of `tokens`."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler:
        """The service's handler, or one that refuses whatever the kind of the call."""
        if handler_call_details.method.startswith(_PUBLIC):
            return await continuation(handler_call_details)
        shown = [value for name, value in handler_call_details.invocation_metadata if name == "authorization"]
        if len(shown) == 1 and await self._tokens.admits(shown[0]):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)
