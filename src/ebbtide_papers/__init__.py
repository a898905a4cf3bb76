"""The published systems that Ebbtide joins: a folder a paper, with what it claims beside what came out here."""
