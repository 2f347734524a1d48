package main

// idle is what the options of r that have no effect on a job of so many hosts are for, a
// sentence each. here: there is none but this one.
func (r *run) idle(hosts int, here bool) (all []string) {
	say := func(given bool, sentence string) {
		if given {
			all = append(all, sentence)
		}
	}
	level := r.level()
	if level != "crashes" {
		say(r.Snapshot > 0, "--snapshot has no effect: ranks are saved with --survive crashes")
		say(r.LogDisk > 0, "--log-disk has no effect: logs outgrow their memory with --survive crashes")
	}
	if level == "none" {
		say(r.LogBytes > 0, "--log-bytes has no effect: with --survive none nothing is logged")
	}
	if (level == "none" || level == "report") && hosts > 1 {
		say(r.Grace > 0, "--grace has no effect: with --survive "+level+" ranks do not leave a host")
		say(r.Contracts != "" && r.Contracts != "off", "--contracts has no effect: with --survive "+level+" ranks do not leave a link that is slow")
		say(r.ContractsFile != "", "--contracts-file has no effect: with --survive "+level+" no contracts are learned")
	} else if r.Contracts == "off" && hosts > 1 {
		say(r.ContractsFile != "", "--contracts-file has no effect: with --contracts off none are learned")
	}
	say(r.SpareMemory > 0 && r.Spares == 0, "--spare-memory has no effect: the job has no spare processes (--spares)")
	if hosts == 1 {
		say(r.Grace > 0, "--grace has no effect: the job has one host")
		say(r.Silence > 0 && here, "--silence has no effect: the job is on this host alone")
		say(r.Contracts != "" && r.Contracts != "off", "--contracts has no effect: the job has one host, and so no links between hosts")
		say(r.ContractsFile != "", "--contracts-file has no effect: the job has one host, and so no links between hosts")
	}
	return all
}
