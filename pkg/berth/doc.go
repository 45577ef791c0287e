// Package berth is the domain of Berth: tasks, attempts, leases, devices,
// hosts and plugins, and the rules by which they move. It imports the
// standard library alone and does no I/O.
//
// Every rule that decides something (may this transition happen, what follows
// an ended attempt, when is the next try, may this device be leased, who comes
// first) is a pure function here. Both storage engines lock rows, load them,
// ask the rule, and write what it says; neither has a rule of its own.
//
// The words are those of docs/adr/0001: a task is tried by attempts, an attempt
// holds a device through a lease, each new lease of a device raises the
// device's fence, each start of a Host Agent raises the host's epoch.
package berth
