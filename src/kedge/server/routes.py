"""Every route of the server (section 3 of the contract). Planned routes are not listed."""

from __future__ import annotations

from typing import Any

from kedge.protocol import api
from kedge.protocol.api import Offered
from kedge.protocol.files import ForkBody, RedoBody, Rewound, SessionFiles, SessionFilesQuery, Timeline, UndoBody
from kedge.protocol.lsp import LspServers
from kedge.protocol.mcp import McpServers
from kedge.protocol.mcp_requests import (
    McpLoggedOut,
    McpLogin,
    McpLoginAccepted,
    McpLoginAnswerBody,
    McpLoginQuery,
    McpLoginState,
    McpPromptBody,
    McpPrompts,
    McpPromptText,
    McpResourceBody,
    McpResourceContent,
    McpResources,
    McpTest,
)
from kedge.protocol.requests import AnswerReceipt, Skip
from kedge.protocol.runs import QueuedPrompt, Receipt, Run, RunStatus
from kedge.protocol.sessions import (
    Job,
    JobList,
    JobOutput,
    Session,
    SessionChange,
    SessionDetails,
    SessionStatus,
    Workspace,
)
from kedge.protocol.skills import SkillList, UserCommands
from kedge.server.handlers import config, mcp, requests, runs, server, sessions, workspaces
from kedge.server.http import Route

W = "/v1/workspaces/{workspace_id}"
S = W + "/sessions/{session_id}"
A = W + "/agent/sessions/{session_id}"

ROUTES = (
    Route("GET", "/v1/health", server.get_health, api.Health),
    Route("GET", "/v1/proof", server.get_proof, api.Proof, query=api.ProofQuery, errors=(404,)),
    Route("GET", "/v1/version", server.get_version, api.Version),
    Route("GET", "/v1/openapi.json", server.get_openapi, dict[str, Any]),
    Route("GET", "/v1/metrics", server.get_metrics, str, media_type=server.PROMETHEUS),
    Route("POST", "/v1/control", server.control_server, api.Controlled, body=api.ControlBody, errors=(409,)),
    Route(
        "GET", "/v1/credentials", config.list_credentials, api.CredentialList, query=api.CredentialsQuery, errors=(404,)
    ),
    Route("POST", "/v1/credentials", config.log_in, api.StoredCredential, body=api.LoginBody, errors=(404,)),
    Route("DELETE", "/v1/credentials/{provider_id}", config.log_out, api.Deleted, errors=(422,)),
    Route("GET", "/v1/sessions", sessions.list_all_sessions, api.ListedSessions, query=api.AllSessionsQuery),
    Route("GET", "/v1/workspaces", workspaces.list_workspaces, api.Workspaces),
    Route("POST", "/v1/workspaces", workspaces.open_workspace, Workspace, body=api.WorkspaceBody),
    Route("GET", W, workspaces.get_workspace, Workspace),
    Route("DELETE", W, workspaces.delete_workspace, api.Deleted, errors=(409,)),
    Route(
        "GET",
        W + "/events",
        workspaces.stream_events,
        str,
        query=api.EventsQuery,
        media_type="text/event-stream; charset=utf-8",
    ),
    Route("GET", W + "/files", workspaces.find_files, api.Files, query=api.FilesQuery),
    Route("GET", W + "/commands", workspaces.list_commands, UserCommands),
    Route("GET", W + "/skills", workspaces.list_skills, SkillList),
    Route("GET", W + "/log", workspaces.read_log, api.LogAnswer, query=api.LogQuery),
    Route("GET", W + "/sessions", sessions.list_sessions, api.Sessions, query=api.SessionsQuery),
    Route("POST", W + "/sessions", sessions.create_session, Session, body=api.SessionBody),
    Route("GET", S, sessions.get_session, SessionDetails),
    Route("PATCH", S, sessions.change_session, Session, body=SessionChange),
    Route("DELETE", S, sessions.delete_session, api.Deleted),
    Route("GET", S + "/messages", sessions.list_messages, api.Messages, query=api.MessagesQuery),
    Route("GET", S + "/files", sessions.list_session_files, SessionFiles, query=SessionFilesQuery),
    Route("GET", S + "/context", sessions.get_session_context, api.SessionContext, errors=(422,)),
    Route("GET", S + "/grants", requests.list_grants, api.SessionGrants),
    Route("DELETE", S + "/grants/{grant_id}", requests.revoke_grant, api.Deleted),
    Route("GET", S + "/timeline", sessions.get_timeline, Timeline),
    Route("POST", S + "/undo", sessions.undo_session, Rewound, body=UndoBody, errors=(409,)),
    Route("POST", S + "/redo", sessions.redo_session, Rewound, body=RedoBody, errors=(409,)),
    Route("POST", S + "/fork", sessions.fork_session, Rewound, body=ForkBody, errors=(409,)),
    Route("GET", W + "/agent", runs.get_agent_state, api.AgentState),
    Route("POST", W + "/agent", runs.submit_prompt, Receipt, status=202, body=api.SubmitBody, errors=(409, 429)),
    Route("GET", W + "/runs", runs.list_runs, api.Runs, query=api.RunsQuery),
    Route("GET", W + "/runs/{run_id}", runs.get_run, RunStatus, query=api.RunQuery),
    Route("POST", W + "/runs/{run_id}/cancel", runs.cancel_run, Run),
    Route("POST", W + "/runs/{run_id}/mode", runs.switch_mode, Run, body=api.ModeBody, errors=(409,)),
    Route("GET", A, runs.get_session_status, SessionStatus),
    Route(
        "POST", A + "/summarize", runs.summarize_session, Receipt, status=202, body=api.SummarizeBody, errors=(409, 429)
    ),
    Route("POST", A + "/shell", runs.run_shell_command, Receipt, status=202, body=api.ShellBody, errors=(409, 429)),
    Route("POST", A + "/cancel", runs.cancel_session, api.Cancelled),
    Route("GET", A + "/prompts/list", runs.list_queue, api.Queue),
    Route("POST", A + "/prompts/move", runs.move_queued_prompt, api.Queue, body=api.MoveBody, errors=(409,)),
    Route("POST", A + "/prompts/promote", runs.promote_queued_prompt, Run, body=api.PromoteBody, errors=(409,)),
    Route("POST", A + "/prompts/clear", runs.clear_queue, api.Cancelled),
    Route("GET", A + "/prompts/{run_id}", runs.get_queued_prompt, QueuedPrompt, errors=(409,)),
    Route("DELETE", A + "/prompts/{run_id}", runs.remove_queued_prompt, api.Cancelled, errors=(409,)),
    Route("GET", W + "/config", config.get_config, api.ConfigAnswer, errors=(422,)),
    Route("POST", W + "/config/set", config.set_config, api.ConfigAnswer, body=api.ConfigSetBody),
    Route("POST", W + "/config/remove", config.remove_config, api.ConfigAnswer, body=api.ConfigRemoveBody),
    Route("POST", W + "/config/model", config.set_model, api.ConfigAnswer, body=api.ConfigModelBody),
    Route("GET", W + "/models", config.list_models, Offered, errors=(422,)),
    Route("GET", W + "/lsps", workspaces.list_language_servers, LspServers),
    Route("POST", W + "/lsps/{name}/restart", workspaces.restart_language_server, LspServers),
    Route("GET", W + "/mcp", mcp.list_mcp_servers, McpServers, errors=(422,)),
    Route("POST", W + "/mcp/start", mcp.start_mcp_servers, McpServers, errors=(422,)),
    Route("GET", W + "/mcp/prompts", mcp.list_mcp_prompts, McpPrompts, errors=(422,)),
    Route("GET", W + "/mcp/resources", mcp.list_mcp_resources, McpResources, errors=(422,)),
    Route("POST", W + "/mcp/{name}/restart", mcp.restart_mcp_server, McpServers, errors=(422,)),
    Route("POST", W + "/mcp/{name}/test", mcp.test_mcp_server, McpTest, errors=(422,)),
    Route("POST", W + "/mcp/{name}/login", mcp.log_in_to_mcp_server, McpLogin, errors=(422,)),
    Route("GET", W + "/mcp/{name}/login", mcp.get_mcp_login, McpLoginState, query=McpLoginQuery, errors=(422,)),
    Route("POST", W + "/mcp/{name}/login/answer", mcp.answer_mcp_login, McpLoginAccepted, body=McpLoginAnswerBody),
    Route("POST", W + "/mcp/{name}/logout", mcp.log_out_of_mcp_server, McpLoggedOut, errors=(422,)),
    Route("POST", W + "/mcp/{name}/prompt", mcp.get_mcp_prompt, McpPromptText, body=McpPromptBody),
    Route("POST", W + "/mcp/{name}/resource", mcp.read_mcp_resource, McpResourceContent, body=McpResourceBody),
    Route("GET", W + "/jobs", runs.list_jobs, JobList, query=api.JobsQuery),
    Route("GET", W + "/jobs/{job_id}/output", runs.get_job_output, JobOutput, query=api.JobOutputQuery),
    Route("POST", W + "/jobs/{job_id}/kill", runs.kill_job, Job),
    Route("GET", W + "/permissions", requests.list_permissions, api.PendingPermissions),
    Route("POST", W + "/permissions/grant", requests.grant_permission, AnswerReceipt, body=api.GrantBody),
    Route("GET", W + "/permissions/skip", requests.get_skip, Skip),
    Route("POST", W + "/permissions/skip", requests.set_skip, Skip, body=Skip),
    Route("GET", W + "/questions", requests.list_questions, api.PendingQuestions),
    Route("POST", W + "/questions/answer", requests.answer_question, AnswerReceipt, body=api.AnswerBody),
    Route("POST", W + "/questions/cancel", requests.cancel_question, AnswerReceipt, body=api.RequestBody),
)
