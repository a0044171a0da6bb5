// Starts the command line of the pinned package, with three differences that concern only this process:
// its name says nothing that a task could match by accident (`pkill -f <word>`), compiled code comes from
// the runtime's own folder instead of the sandbox's /tmp, and no environment variable is needed for that,
// so the tools that it starts inherit none.
import { createRequire, enableCompileCache } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const cli = path.join(here, "node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js");

process.title = "inspan-h";
Object.defineProperty(process, "title", { get: () => "inspan-h", set() {}, configurable: true });
enableCompileCache({ directory: path.join(here, "compiled"), portable: true });
process.argv[1] = cli;
// The loader of extensions would make a folder in /tmp; the extension takes the variable away again.
if (process.argv.includes("-e")) process.env.JITI_FS_CACHE = "false";
createRequire(cli)("./cli-runtime.js");
