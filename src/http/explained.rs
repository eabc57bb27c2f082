//! [`Explained`]: a connection on which also hyper's own answers say what is wrong.
//!
//! A head that is none hyper answers by itself, with a status and nothing else, and ends the connection. No answer of ours
//! that refuses something is empty, so one that is empty is hyper's.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::problem::{self, Problem};

/// The head of a refusal without a body has no more bytes.
const HEAD_MAX: usize = 512;

/// See the module.
#[derive(Debug)]
pub(super) struct Explained(pub(super) TcpStream);

/// What to write in the place of an answer of hyper's own.
fn explanation(answer: &[u8]) -> Option<String> {
    if !answer.starts_with(b"HTTP/1.") || answer.len() > HEAD_MAX {
        return None;
    }
    let head = std::str::from_utf8(answer).ok()?.strip_suffix("\r\n\r\n")?;
    let (before, after) = head.split_once("\r\ncontent-length: 0")?;
    let body = Problem::of_head(before.split(' ').nth(1)?)?.json();
    Some(format!(
        "{before}\r\ncontent-type: {}\r\ncontent-length: {}{after}\r\n\r\n{body}",
        problem::CONTENT_TYPE,
        body.len()
    ))
}

impl AsyncRead for Explained {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Explained {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.0);
        let Some(answer) = explanation(bytes) else {
            return stream.poll_write(context, bytes);
        };
        if ready!(stream.poll_write(context, answer.as_bytes()))? < answer.len() {
            // The client has taken nothing for so long that not even this has room.
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
