// The suite wants `globSync` of `fs`, which Node.js 20 does not have. Nothing that is done here uses it.
import { register } from 'node:module';

const fs = `export * from 'node:fs';
export { default } from 'node:fs';
export const globSync = () => { throw new Error('globSync needs Node.js 22'); };`;
const address = (text) => `data:text/javascript,${encodeURIComponent(text)}`;
register(address(`export async function resolve(specifier, context, next) {
  const isSuite = specifier === 'fs' && context.parentURL?.includes('@modelcontextprotocol/conformance/');
  return isSuite ? { url: ${JSON.stringify(address(fs))}, shortCircuit: true } : next(specifier, context);
}`));
