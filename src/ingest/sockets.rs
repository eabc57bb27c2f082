//! [`Sockets`]: all sockets of a program, taken from a service manager or bound, each with those who read it.

use std::io;
use std::sync::Arc;

use socket2::Socket;

use super::{
    BindError, BindSettings, InheritError, Inherited, ListenAddress, Receiver, SocketFile, bind,
    check_all_named, take_at,
};

/// Where to receive, and how.
#[derive(Debug, Clone, Copy)]
pub struct Sockets<'a> {
    /// The addresses.
    pub listen: &'a [ListenAddress],
    /// How they are bound.
    pub how: BindSettings,
    /// The threads that read each socket. They share it: a single sender is one flow, which several sockets would not
    /// spread.
    pub threads: usize,
    /// The longest datagram that is read whole, in bytes.
    pub datagram_max: usize,
    /// What the units of the service manager are called: `eds` of `eds.socket`.
    pub unit: &'static str,
}

/// Sockets that can be read.
#[derive(Debug, Default)]
pub struct Opened {
    /// One for each thread.
    pub receivers: Vec<Receiver>,
    /// Where they are, with the ports that the system chose.
    pub addresses: Vec<ListenAddress>,
    /// What the kernel gives the receive buffers of those for UDP together.
    pub buffer_bytes: u64,
    /// What the kernel had dropped from the inherited ones before this process looked.
    pub drops_before: u64,
}

/// Why a socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// That of the service manager cannot be used.
    #[error(transparent)]
    Inherit(#[from] InheritError),
    /// The system does not tell where it is, or gives no descriptor more.
    #[error("cannot use a socket: {0}")]
    Io(#[from] io::Error),
}

impl Sockets<'_> {
    /// Takes the inherited sockets, and binds the others.
    pub fn open(&self, mut inherited: Vec<Inherited>) -> Result<Opened, OpenError> {
        check_all_named(&inherited, self.listen, self.unit)?;
        let mut opened = Opened::default();
        for address in self.listen {
            let held = take_at(&mut inherited, address, &self.how)?;
            if held.is_empty() {
                let (socket, file) = bind(address, self.listen, &self.how)?;
                let receivers = self.receivers(socket, file, &mut opened)?;
                opened.receivers.extend(receivers);
            }
            for socket in held {
                for receiver in self.receivers(socket, None, &mut opened)? {
                    let drops = receiver.drops_before();
                    report_drops(address, drops);
                    opened.drops_before += u64::from(drops);
                    opened.receivers.push(receiver.outliving());
                }
            }
        }
        Ok(opened)
    }

    fn receivers(
        &self,
        socket: Socket,
        file: Option<SocketFile>,
        opened: &mut Opened,
    ) -> io::Result<Vec<Receiver>> {
        // The kernel reports the double of what it has room for.
        let buffer = socket.recv_buffer_size()? as u64 / 2;
        let file = file.map(Arc::new);
        let mut receivers = Vec::new();
        for _ in 1..self.threads {
            let receiver = Receiver::sharing(socket.try_clone()?, self.datagram_max);
            receivers.push(receiver.with_file(file.clone()));
        }
        let receiver = Receiver::new(socket, self.datagram_max);
        opened.addresses.extend(receiver.address());
        if !receiver.makes_senders_wait() {
            opened.buffer_bytes += buffer;
        }
        receivers.push(receiver.with_file(file));
        Ok(receivers)
    }
}

fn report_drops(address: &ListenAddress, drops: u32) {
    if drops > 0 {
        tracing::warn!(
            %address,
            datagrams = drops,
            "the kernel dropped datagrams from this socket before this process read it; the processes before it have \
             counted them up to their end, and what was dropped since then is counted here only"
        );
    }
}
