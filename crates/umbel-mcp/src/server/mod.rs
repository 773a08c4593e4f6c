//! Agents as an MCP server.
