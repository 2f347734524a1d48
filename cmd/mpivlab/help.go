//go:build linux

package main

const help = `mpivlab makes several hosts on this machine, with networks between them, and runs
a command on the first. When the command ends, all is gone. Needs no root where
users may make user namespaces.

  mpivlab [options] [--] [command [args]]    default: your shell

  --hosts X,Y,Z,W,A       names of the hosts (these by default)
  --lan 100mbit           rate of the network that all are on; 0: unshaped
  --san Y,Z:1gbit         a faster network between some; none: there is none
  --network NAME:A,B:RATE one more network; without :RATE unshaped
  --nat NAME:A,B[:RATE]   a private network: its hosts reach the lan through a
                          router called NAME, and nobody can reach them
  --queue 1500000         bytes that wait at each end of a cable
  --congestion reno       congestion control of TCP on the hosts; this machine's by
                          default

Inside the lab, or from another terminal:

  mpivlab exec HOST command [args]    run a command there
  mpivlab show                        hosts, addresses, rates and faults
  mpivlab hostfile [SLOTS]            the hosts as mpivrun --hostfile takes them

  mpivlab cut HOST NETWORK            pull the cable
  mpivlab heal [HOST NETWORK]         put it back; without words: heal everything
  mpivlab rate HOST NETWORK 5mbit     change the rate of a cable, both ways
  mpivlab impair HOST NETWORK 20ms 1% [SEED]
                                      delay and lose frames, each way; 0 ends it
  mpivlab partition X,W Y,Z           groups that cannot reach each other, in silence;
                                      without words: end it
  mpivlab stop HOST                   SIGSTOP to all processes of a host
  mpivlab continue HOST               SIGCONT
  mpivlab kill HOST                   SIGKILL
  mpivlab throttle HOST 10ms 90ms     run and stop the processes in turn; off ends it
  mpivlab cpu HOST 0.5                cores that the processes get; 0: no limit
  mpivlab flood HOST [--from HOST] [--for 10s] [--connections 200] [--bytes 8000000] [--with apache]
                                      ask HOST for a file again and again, over many
                                      connections at once; from the last host if none is named

Where several labs run, the variable MPIV_LAB says which; inside it is set.

An example, two terminals:

  1$ mpivlab --hosts X,Y --lan 50mbit
  1$ mpivlab exec Y ping 10.1.0.1
  2$ mpivlab cut Y lan; sleep 5; mpivlab heal

The exit code is that of the command, 128 and the number of the signal if one
ended it, 126 if it cannot be executed, 127 if it is not there, 2 for a command
line that makes no sense.
`
