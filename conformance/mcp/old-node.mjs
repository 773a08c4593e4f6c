// Lets the suite run on Node.js 20: it imports a function of `fs` that came with 22, for a command that nobody uses here.
import { register } from "node:module";

const standIn = `data:text/javascript,${encodeURIComponent(
  'export * from "node:fs"; export { default } from "node:fs"; export const globSync = () => [];',
)}`;
const hooks = `
export async function resolve(specifier, context, next) {
  const ofSuite = context.parentURL?.includes("/@modelcontextprotocol/conformance/");
  if (specifier === "fs" && ofSuite) return { url: ${JSON.stringify(standIn)}, shortCircuit: true };
  return next(specifier, context);
}`;
if (Number(process.versions.node.split(".")[0]) < 22) register(`data:text/javascript,${encodeURIComponent(hooks)}`);
