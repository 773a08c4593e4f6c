//! The server for the program that started it: a message in each line.

use std::sync::Arc;

use rmcp::service::{QuitReason, RoleServer, ServiceExt};
use rmcp::transport::async_rw::AsyncRwTransport;
use smol_str::SmolStr;
use tokio::io::{AsyncRead, AsyncWrite};
use umbel_core::{Caller, Error, ErrorKind, Result};

use super::handler::{Catalog, Handler, Offering};

/// Serves over standard input and output until they are closed.
pub(super) async fn serve(catalog: Arc<Catalog>, user: SmolStr) -> Result<()> {
    serve_on(catalog, user, tokio::io::stdin(), tokio::io::stdout()).await
}

/// Serves over two streams of bytes until they are closed.
pub(super) async fn serve_on<R, W>(catalog: Arc<Catalog>, user: SmolStr, read: R, write: W) -> Result<()>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let longest = catalog.limits.message_bytes;
    let transport = AsyncRwTransport::<RoleServer, _, _>::new(read, write).with_max_line_length(longest);
    let broken = |error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Other, format!("the MCP client could not be served: {error}"))
    };
    let running = match Handler::new(Offering::new(catalog), Some(Caller::new(user))).serve(transport).await {
        Ok(running) => running,
        // Whoever closes before saying anything wants nothing.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(broken(&error)),
    };
    match running.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => Err(broken(&error)),
        Ok(_) => Ok(()),
    }
}
