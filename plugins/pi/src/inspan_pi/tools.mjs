// An extension of Pi: the functions of the request, called through the bridge that the shim serves.
//
// `tools.json` beside this file says where it is and which tools it must have; it is deleted as soon as it is
// read. Nothing is taken for granted: what does not fit ends Pi before it asks the model, and only when Pi has
// every tool, and has it from here, is `ready` written. Without that file the run is not gradable.
import { readFileSync, renameSync, unlinkSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { fileURLToPath } from "node:url";

const ANSWER_LIMIT_BYTES = 64 * 1024 * 1024;

// Set by start.mjs for the loader of extensions; no tool shall inherit it.
delete process.env.JITI_FS_CACHE;

function settings() {
  const path = fileURLToPath(new URL("tools.json", import.meta.url));
  const text = readFileSync(path, "utf8");
  unlinkSync(path);
  const { url, token, tools, ready } = JSON.parse(text);
  const isName = (value) => typeof value === "string" && value !== "";
  if (![url, token, ready].every(isName) || !Array.isArray(tools) || !tools.every(isName)) {
    throw new Error("tools.json does not say where the tools are");
  }
  return { url, token, tools, ready };
}

// One JSON-RPC request to the bridge. Not by fetch, which gives up after five minutes of silence.
function ask({ url, token }, method, params, signal) {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const headers = {
    authorization: `Bearer ${token}`,
    "content-type": "application/json",
    "content-length": Buffer.byteLength(body),
  };
  return new Promise((resolve, reject) => {
    const call = request(url, { method: "POST", headers, signal, agent: false }, (response) => {
      const parts = [];
      let size = 0;
      response.on("data", (part) => {
        size += part.length;
        if (size > ANSWER_LIMIT_BYTES) call.destroy(new Error("the bridge's answer is too large"));
        parts.push(part);
      });
      response.on("error", reject);
      response.on("end", () => {
        try {
          if (response.statusCode !== 200) throw new Error(`HTTP status ${response.statusCode}`);
          const answer = JSON.parse(Buffer.concat(parts).toString("utf8"));
          if (answer.error || typeof answer.result !== "object") throw new Error(JSON.stringify(answer.error));
          resolve(answer.result);
        } catch (error) {
          reject(error);
        }
      });
    });
    call.on("error", reject);
    call.end(body);
  });
}

export default async function (pi) {
  const bridge = settings();
  const { tools } = await ask(bridge, "tools/list", {});
  const names = tools.map((tool) => tool.name);
  if (JSON.stringify([...names].sort()) !== JSON.stringify([...bridge.tools].sort())) {
    throw new Error(`the bridge serves other tools than expected: ${names.join(", ")}`);
  }
  for (const { name, description, inputSchema } of tools) {
    pi.registerTool({
      name,
      label: name,
      description,
      parameters: inputSchema,
      async execute(_id, params, signal) {
        const result = await ask(bridge, "tools/call", { name, arguments: params }, signal);
        return { content: result.content, details: {}, isError: result.isError === true };
      },
    });
  }
  pi.on("session_start", () => {
    const active = new Set(pi.getActiveTools());
    const all = pi.getAllTools().filter((tool) => names.includes(tool.name));
    const strange = all.filter((tool) => tool.sourceInfo?.source === "builtin" || !active.has(tool.name));
    if (all.length !== names.length || strange.length > 0) {
      console.error(`the tools are not as expected: ${JSON.stringify([names, all.map((tool) => tool.name)])}`);
      process.exit(70);
    }
    writeFileSync(`${bridge.ready}.part`, JSON.stringify({ tools: names }), { mode: 0o600 });
    renameSync(`${bridge.ready}.part`, bridge.ready);
  });
}
