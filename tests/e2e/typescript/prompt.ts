import { createSession, getRun, openWorkspace, submitPrompt, type Message, type TextPart } from "./client";

export async function prompt(path: string, text: string): Promise<string | null | undefined> {
  const workspace = await openWorkspace({ body: { path }, throwOnError: true });
  const workspace_id = workspace.data.id;
  const session = await createSession({ path: { workspace_id }, body: { title: "" }, throwOnError: true });
  const body = { session_id: session.data.id, prompt: text };
  const receipt = await submitPrompt({ path: { workspace_id }, body, throwOnError: true });
  const run = await getRun({ path: { workspace_id, run_id: receipt.data.run_id }, query: { wait: 30 }, throwOnError: true });
  return run.data.error;
}

export const textOf = (message: Message): string =>
  message.parts.filter((part): part is TextPart => part.type === "text").map((part) => part.text).join("");
