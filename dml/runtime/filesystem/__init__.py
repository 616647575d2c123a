"""Reading and writing of files, safe against interruptions and against files of unknown origin."""
