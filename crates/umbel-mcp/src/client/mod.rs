//! MCP servers as toolsets.
