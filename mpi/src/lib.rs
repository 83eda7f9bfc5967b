//! `libvipl-fi.so`: a provider for libfabric named `vipl`, with endpoints of the type FI_EP_MSG, on which libfabric's own
//! `ofi_rxm` builds FI_EP_RDM, and with endpoints of that type of its own for messages with tags (decision 122).
//!
//! ```text
//!   fi         the C structures that libfabric fixes          provider   fi_prov_ini, fi_getinfo, fi_fabric
//!   libfabric  the few functions of the loading libfabric     fabric · domain · passive · endpoint · cq · eq · mr
//!   device     the library, handles and limits                           one module per kind of object; of endpoints
//!                                                                        also connection and transfer; rdm and av
//!   nic        one open NIC, its lock, its engine             attributes what is offered, and whether it suits the hints
//!   engine     connections: handshake, credits, messages,     packet · credit · iov · address   pure parts
//!              RDMA, completions, all under the NIC's lock
//! ```
//!
//! An object that libfabric sees is a small C structure with the number of its state. The state itself lives in the
//! engine of the NIC, behind one lock; a number whose state has been removed is recognized.

// libfabric's header names its types this way.
#![allow(non_camel_case_types)]

mod address;
mod attributes;
mod av;
mod connection;
mod cq;
mod credit;
mod device;
mod domain;
mod endpoint;
mod engine;
mod eq;
mod fabric;
mod fi;
mod iov;
mod libfabric;
mod mr;
mod nic;
mod object;
mod packet;
mod passive;
mod provider;
mod queue;
mod rdm;
mod settings;
mod slab;
#[cfg(test)]
mod tests;
mod transfer;
