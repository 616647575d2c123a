"""What happens before the job of a run or of a sweep begins."""
