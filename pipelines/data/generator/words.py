"""Text for generated pages: frequent words, names and the small vocabulary of user interfaces."""

import random
from functools import cache
from typing import Any

LANGUAGES = (*("en",) * 20, "de", "fr", "es", "it", "pt", "nl", "pl", "ru", "tr", "sv")
RTL_LANGUAGES = ("ar", "he", "fa")

NAV = (
    "Dashboard|Home|Overview|Analytics|Reports|Orders|Products|Customers|Users|Team|Projects|Tasks|Calendar|Messages|"
    "Inbox|Settings|Billing|Invoices|Profile|Help|Support|Docs|Pricing|Blog|About|Contact|Features|Integrations|Log out|"
    "Components|Buttons|Cards|Tables|Charts|Forms|Maps|Notifications|Files|Media|Pages|Authentication|Layouts|Utilities|"
    "Sign In|Sign Up|Shop|Cart|Careers|Partners|Explore|Library|Activity|Teams|Security|API Keys|Webhooks|Domains|Logs"
).split("|")
BUTTONS = (
    "Save|Cancel|Submit|Sign in|Log in|Sign up|Get started|Learn more|Add to cart|Buy now|Continue|Next|Back|Delete|Edit|"
    "View|Download|Upload|Export|Import|Share|Follow|Reply|Send|Create|New project|Add user|Invite|Search|Filter|Apply|"
    "Reset|Update|Save changes|Generate Report|Try it free|Start free trial|Contact us|Read more|View all|Show more|Refresh|"
    "Subscribe|Book now|Details|Copy|Connect|Upgrade|Confirm|Register|Accept|Decline|Print|Publish"
).split("|")
LABELS = (
    "Email address|Password|First name|Last name|Username|Company|Phone number|Address|City|Country|Postal code|Message|"
    "Subject|Date of birth|Website|Card number|Expiry date|Name on card|Confirm password|Language|Time zone|Title|"
    "Description|Category|Price|Quantity|Status|Department|Role|Notes|Amount|Currency|Start date|End date|Job title|Bio"
).split("|")
CHECKS = (
    "Remember me|I agree to the terms|Send me updates|Email notifications|Dark mode|Keep me signed in|Two-factor login|"
    "Public profile|Weekly digest|Allow comments|Push notifications|Same as billing address|Show online status|Auto save"
).split("|")
STATS = (
    "Earnings (Monthly)|Earnings (Annual)|Total revenue|New users|Active sessions|Orders|Pending requests|Bounce rate|"
    "Conversion|Sales today|Visitors|Tasks|Tickets|Net profit|Open issues|Downloads|Average order|Traffic|Growth|Uptime|"
    "Followers|Clients|Money spent|Page views|Refunds|Storage used|Response time|Subscriptions"
).split("|")
COLUMNS = (
    "Name|Position|Office|Age|Start date|Salary|Status|Date|Amount|Customer|Product|Quantity|Price|Total|Email|Role|"
    "Progress|Project|Budget|Completion|Author|Function|Employed|ID|Type|Country|Rating|Action|Due|Priority|Plan|Version"
).split("|")
TAGS = (
    "New|Active|Pending|Done|Paid|Failed|Draft|Beta|Online|Offline|High|Low|Medium|In progress|Cancelled|Shipped|Sale|Pro|"
    "Hot|Open|Closed|Urgent|Review|Live|Success|Warning|Admin|Member|Free|Approved"
).split("|")
HEADS = (
    "Earnings Overview|Revenue Sources|Recent activity|Latest orders|Projects|Top products|Team members|Sales overview|"
    "Upcoming events|Notifications|Browser usage|Monthly recap|Traffic sources|Quick actions|Invoices|Transactions|"
    "Payment method|Billing information|Account details|Popular posts|Categories|Related articles|Authors table|To do list|"
    "Server status|Messages|Direct chat|Calendar|Visitors by country|Storage|What people say|Our services|How it works|"
    "Frequently asked questions|Features|Why choose us|Latest news|Our team|Pricing plans|Contact us|About us|Our work"
).split("|")


_RUDE = (
    "fuck",
    "shit",
    "bitch",
    "damn",
    "sex",
    "porn",
    "nigg",
    "dick",
    "cock",
    "puss",
    "rape",
    "kill",
    "whore",
    "nazi",
)


@cache
def _frequent(language: str) -> tuple[str, ...]:
    from wordfreq import top_n_list

    words = [w for w in top_n_list(language, 2500) if w.isalpha() and not w.startswith(_RUDE)]
    return tuple(words)


@cache
def _faker() -> Any:
    from faker import Faker

    return Faker("en_US")


class Words:
    """Random text in one language. All randomness comes from `rng`, so a seed gives the same page everywhere."""

    def __init__(self, rng: random.Random, language: str = "en") -> None:
        self.rng = rng
        self.language = language
        self._words = _frequent(language)
        self._fake = _faker()
        self._fake.seed_instance(rng.getrandbits(32))

    def pick(self, known: tuple[str, ...] | list[str]) -> str:
        """One of the interface words, or in another language a short phrase of its own."""
        if self.language == "en" or self.rng.random() < 0.1:
            return self.rng.choice(known)
        return self.words(self.rng.choice((1, 1, 2))).capitalize()

    def word(self) -> str:
        # squared: frequent words are frequent, as in running text
        return self._words[int(len(self._words) * self.rng.random() ** 2)]

    def words(self, n: int) -> str:
        return " ".join(self.word() for _ in range(n))

    def title(self, low: int = 2, high: int = 6) -> str:
        text = self.words(self.rng.randint(low, high))
        return text.title() if self.rng.random() < 0.35 and self.language == "en" else text[:1].upper() + text[1:]

    def sentence(self, low: int = 5, high: int = 16) -> str:
        n = self.rng.randint(low, high)
        parts = [self.word() for _ in range(n)]
        if n > 9 and self.rng.random() < 0.5:
            parts[n // 2] += ","
        text = " ".join(parts)
        return text[:1].upper() + text[1:] + self.rng.choices(".!?", (20, 1, 1))[0]

    def paragraph(self, low: int = 2, high: int = 5) -> str:
        return " ".join(self.sentence() for _ in range(self.rng.randint(low, high)))

    def name(self) -> str:
        return str(self._fake.name()) if self.language in ("en", "de", "fr", "es", "it") else self.words(2).title()

    def company(self) -> str:
        return (
            str(self._fake.company())
            if self.rng.random() < 0.5
            else self.word().capitalize() + self.rng.choice(("ly", " UI", " Kit", "hub", "", " Labs", " Admin"))
        )

    def email(self) -> str:
        return str(self._fake.email())

    def city(self) -> str:
        return str(self._fake.city())

    def job(self) -> str:
        return str(self._fake.job())

    def date(self) -> str:
        day, month, year = self.rng.randint(1, 28), self.rng.randint(1, 12), self.rng.randint(1998, 2027)
        names = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
        form = self.rng.randrange(5)
        return (
            f"{day:02d}.{month:02d}.{year}",
            f"{year}-{month:02d}-{day:02d}",
            f"{day} {names[month - 1]} {year}",
            f"{names[month - 1]} {day}, {year}",
            f"{year}/{month:02d}/{day:02d}",
        )[form]

    def time(self) -> str:
        return self.rng.choice(
            (
                f"{self.rng.randint(2, 59)} min ago",
                f"{self.rng.randint(0, 23)}:{self.rng.randint(0, 59):02d}",
                f"{self.rng.randint(2, 23)}h",
                "yesterday",
                "just now",
                f"{self.rng.randint(2, 11)} days ago",
            )
        )

    def money(self) -> str:
        value = 10 ** self.rng.uniform(0.7, 5.5)
        sign = self.rng.choice("$$$$€£")
        return f"{sign}{value:,.2f}" if value < 1000 else f"{sign}{value:,.0f}"

    def number(self) -> str:
        value = 10 ** self.rng.uniform(0, 5)
        return self.rng.choice(
            (
                f"{value:.0f}",
                f"{value:,.0f}",
                f"{value / 1000 + 0.1:.1f}k",
                f"{self.rng.randint(1, 99)}%",
                f"{self.rng.uniform(0, 99):.1f}%",
            )
        )

    def percent(self) -> str:
        return f"{self.rng.choice(('+', '-', '', '+'))}{self.rng.uniform(0, 60):.{self.rng.choice((0, 1, 2))}f}%"

    def cell(self, column: str) -> str:
        """Something that fits below the column heading."""
        kind = column.lower()
        if kind in ("name", "customer", "author", "employed") and kind != "employed":
            return self.name()
        if kind in ("date", "start date", "due", "employed"):
            return self.date()
        if kind in ("salary", "amount", "price", "total", "budget"):
            return self.money()
        if kind in ("age", "quantity", "id", "completion", "rating", "progress"):
            return self.number()
        if kind == "email":
            return self.email()
        if kind in ("office", "country"):
            return self.city()
        if kind in ("position", "role", "function"):
            return self.job()[:24]
        return self.title(1, 3)
