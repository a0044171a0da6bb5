"""The bodies that travel between an Environment Server, an Agent Server and its clients.

Field names and values are those that a NeMo Gym 0.7.0 Environment Server sends and accepts.
`inspan_core.codec` is the only way in and out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from attrs import field, frozen

from inspan_core.constraints import NAME_PATTERN, RESERVED_SUFFIX_PATTERN, HeaderMap, HttpUrl, Text, Whole
from inspan_core.observations import AgentObservationBundle

ID_LENGTH = 256
"""Most characters of an id: it travels in URLs, cookies and file names."""

TASK_LENGTH = 4096
ATTEMPT_LIMIT = 999_999_999
TOOL_ACCESSES_LIMIT = 100
DESCRIPTOR_LENGTH = 64 * 1024
"""Most characters of a sandbox's descriptor as JSON: it is kept with its session."""

RolloutId = Annotated[
    str,
    Text(
        pattern=NAME_PATTERN,
        max_length=ID_LENGTH,
        reserved=RESERVED_SUFFIX_PATTERN,
        reserved_reason="must not end with '-a<N>', which is reserved for attempts",
    ),
]
Name = Annotated[str, Text(pattern=NAME_PATTERN, max_length=ID_LENGTH)]
SessionId = Annotated[str, Text(min_length=1, max_length=ID_LENGTH)]
Url = Annotated[str, HttpUrl()]
Headers = Annotated[Mapping[str, str], HeaderMap()]
AbsolutePath = Annotated[str, Text(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")]


@frozen(kw_only=True)
class EpisodeId:
    """One attempt at one rollout."""

    rollout_id: RolloutId
    attempt: Annotated[int, Whole(minimum=0, maximum=ATTEMPT_LIMIT, numeric_text=True)] = 0

    @property
    def capture_key(self) -> str:
        """The name under which the Model Server files this episode's calls, part of its URL."""
        return self.rollout_id if self.attempt == 0 else f"{self.rollout_id}-a{self.attempt}"


@frozen(kw_only=True)
class TaskId:
    """A task of a set of tasks."""

    taskset: Annotated[str, Text(max_length=TASK_LENGTH)]
    task_id: Annotated[str, Text(max_length=TASK_LENGTH)]


@frozen(kw_only=True)
class DirectHttpAccess:
    """A grant of tools that are called by ``POST <base_url>/<function name>``."""

    name: Name
    base_url: Url
    kind: Literal["direct_http"] = "direct_http"
    required: bool = True
    cookies: Headers = field(factory=dict[str, str], repr=False)
    headers: Headers = field(factory=dict[str, str], repr=False)


@frozen(kw_only=True)
class McpConnection:
    """Where an MCP server listens."""

    url: Url
    transport: Literal["streamable_http"] = "streamable_http"
    headers: Headers = field(factory=dict[str, str], repr=False)


@frozen(kw_only=True)
class McpAccess:
    """A grant of the tools of an MCP server."""

    name: Name
    connection: McpConnection
    kind: Literal["mcp"] = "mcp"
    required: bool = True


ToolAccess = DirectHttpAccess | McpAccess


@frozen(kw_only=True)
class DirectSandboxConnection:
    """How to reach a running sandbox: a provider block of our configuration and its descriptor."""

    kind: Literal["direct"]
    provider_config_ref: Annotated[str, Text(max_length=ID_LENGTH)]
    descriptor: Mapping[str, Any]


@frozen(kw_only=True)
class SandboxAccess:
    """A supplied sandbox and the task's folder in it."""

    connection: DirectSandboxConnection
    workdir: AbsolutePath


@frozen(kw_only=True)
class SeedRequest:
    """Opens a session (AgentSeedSessionRequest). Tool names are unique."""

    agent_session_id: SessionId
    episode_id: EpisodeId
    task_id: TaskId
    tool_accesses: tuple[ToolAccess, ...] = ()
    sandbox_access: SandboxAccess | None = None


@frozen(kw_only=True)
class SeedResponse:
    """Answers a seed."""

    agent_session_id: str


@frozen(kw_only=True)
class CloseRequest:
    """Closes a session, seeded or not (AgentCloseSessionRequest)."""

    agent_session_id: Annotated[str, Text(max_length=ID_LENGTH)]
    episode_id: EpisodeId


@frozen(kw_only=True)
class CloseResponse:
    """Answers a close (AgentCloseSessionResponse).

    Attributes:
        agent_observations: None only when the id was never seeded.
        resources_cookies: The Resources Server's cookie jar, when tool calls changed it.
    """

    agent_session_id: str
    agent_observations: AgentObservationBundle | None = None
    resources_cookies: Mapping[str, str] | None = None


@frozen(kw_only=True)
class ResponsesRequest:
    """Activates a session: the fields of a Responses API create request; null means not set.

    Attributes:
        raw: The body as it came: only the fields that the task set.
    """

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    metadata: Mapping[str, str] | None = None
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: str | None = None
    include: list[str] | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    previous_response_id: str | None = None
    prompt: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    stream: Literal[False] | None = None
    user: str | None = None
    raw: Mapping[str, Any] = field(factory=dict[str, Any], eq=False, repr=False)


REQUEST_DEFAULTS: Mapping[str, Any] = {
    "parallel_tool_calls": True,
    "stream": False,
    "tool_choice": "auto",
    "tools": [],
}
"""What a Responses request means where it does not say so: two such bodies are the same activation."""


@frozen(kw_only=True)
class TaskInput:
    """What a task gives to the agent and to its Resources Server."""

    responses_create_params: Mapping[str, Any]
    task_data: Mapping[str, Any] = field(factory=dict[str, Any])


@frozen(kw_only=True)
class RunTask:
    """A task with its input."""

    task_id: TaskId
    task_input: TaskInput


@frozen(kw_only=True)
class RunRequest:
    """Asks an Environment Server for one episode."""

    episode_id: EpisodeId
    task: RunTask


@frozen(kw_only=True)
class RunFailure:
    """Why an episode has no result.

    Attributes:
        terminal: Whether a retry cannot help.
        stage: Where it failed.
        partial_response: The agent's response, when there is one.
    """

    failure_reason: str
    terminal: bool
    stage: Literal["seed", "agent", "cleanup", "verification"]
    partial_response: Mapping[str, Any] | None = None


@frozen(kw_only=True)
class RunResponse:
    """Answers a run: either `result` or `failure` is set."""

    episode_id: EpisodeId
    task_id: TaskId
    result: Mapping[str, Any] | None = None
    failure: RunFailure | None = None
